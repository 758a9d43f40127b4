"""The table of variants: every label that the papers name, and further labels.

Any other label of the grammar works too. The labels in this table are listed for users, and every
contract test runs over them.
"""

from dataclasses import dataclass

from qkvary.arch.labels import parse_variant
from qkvary.arch.variants import Variant


@dataclass(frozen=True, slots=True)
class NamedVariant:
    """An entry of the table of variants."""

    label: str
    origin: str
    """Where the variant was first described; ``this project`` if it was not published before."""
    remark: str = ""
    """A remark that is added to the meaning derived from the variant."""

    @property
    def variant(self) -> Variant:
        """The variant that the label names."""
        return parse_variant(self.label)


VARIANTS: tuple[NamedVariant, ...] = (
    NamedVariant("QKV", "standard attention", "the baseline"),
    NamedVariant("Q=K-V", "three projections", "symmetric scores; no saving in the cache"),
    NamedVariant(
        "(Q=K-V)+", "three projections", "the score factor tau has a random sign before training"
    ),
    NamedVariant("Q-K=V", "three projections", "half the cache"),
    NamedVariant("Q=K=V", "three projections", "symmetric scores, half the cache"),
    NamedVariant(
        "(Q=K=V)+", "three projections", "the score factor tau has a random sign before training"
    ),
    NamedVariant("GQA-4", "standard attention", "4 KV heads, each read by a group of query heads"),
    NamedVariant("GQA-2", "standard attention", "2 KV heads"),
    NamedVariant("MQA", "standard attention", "one KV head"),
    NamedVariant("Q-GQA-4", "three projections", "head sharing combined with K=V"),
    NamedVariant("Q-GQA-2", "three projections", "head sharing combined with K=V"),
    NamedVariant("Q-MQA", "three projections", "one KV head of one tensor: the smallest cache"),
    NamedVariant("I-K-V", "query identity", "scores are linear in the learned weights"),
    NamedVariant(
        "Q[residual]-K-V", "query identity", "the query is the layer input plus a projection of it"
    ),
    NamedVariant(
        "Q[residual-gelu]-K-V",
        "query identity",
        "the query is a nonlinear function of the layer input",
    ),
    NamedVariant("Q-I-V", "overview article", "caches the layer input in place of K"),
    NamedVariant("Q-K-I", "query identity", "query, key or value can be the layer input"),
    NamedVariant("Q-K[d/4]-V/1", "overview article", "low-rank key, one KV head"),
    NamedVariant("Q-K[d/4]-V", "overview article"),
    NamedVariant("Q-K-V[d/4]", "this project"),
    NamedVariant("Q=V", "three projections", "not tested in the poster; no saving in the cache"),
    NamedVariant("I-K=V", "this project", "as small as Q=K=V, but scores are asymmetric"),
    NamedVariant("I-K=V/1", "this project", "has the parameters and the cache of one shared head"),
    NamedVariant("Q[map]=K-V", "this project", "in between a shared and a separate query"),
    NamedVariant("Q[map]=K=V", "this project", "one projection; only the query has a map"),
    NamedVariant("Q[map]=K=V/1", "this project", "one KV head; a map for each query head"),
    NamedVariant("Q=K-I", "this project"),
    NamedVariant("Q=V-I", "this project"),
    NamedVariant("Q-I-I", "this project", "caches only the layer input"),
    NamedVariant("I-K-I", "this project"),
    NamedVariant("I-I-V", "this project", "scores compare raw layer inputs"),
    NamedVariant("I-I-I", "this project", "no input projection at all"),
    NamedVariant(
        "Q=K=V@relative", "this project", "scores are asymmetric: biases depend on the sign of i-j"
    ),
    NamedVariant(
        "Q=K=V@alibi", "this project", "scores are symmetric in (i, j), but the causal mask is not"
    ),
    NamedVariant("Q=K=V@rotary", "this project", "scores are a Gram matrix: R(i) k_i . R(j) k_j"),
    NamedVariant(
        "Q-K=V@rotary", "this project", "value_rope selects one of three ways to make the value"
    ),
    NamedVariant("QKV@rotary", "standard attention"),
    NamedVariant(
        "Q-K=V@decoupled-16@kv-norm", "this project", "the portable form, a special case of MLA"
    ),
    NamedVariant(
        "Q-K=V@decoupled-16@latent-64@kv-norm", "latent attention", "MLA, DeepSeek-AI 2024"
    ),
    NamedVariant("Q=K-V@diag-mean", "three projections", "appendix A.2"),
    NamedVariant("Q=K-V@diag-norm", "three projections", "appendix A.2"),
    NamedVariant(
        "Q=K-V@diag-mean-unscaled", "three projections", "the code of figure 5 of the paper"
    ),
    NamedVariant(
        "Q=K=V@diag-norm-unscaled", "three projections", "the code of figure 5 of the paper"
    ),
    NamedVariant("Q=K=V@t0.5", "three projections", "softmax temperature, appendix A.2"),
    NamedVariant("QKV@w64", "standard attention", "sliding window of 64 tokens"),
    NamedVariant("QKV@s8", "this project", "reads every eighth token; all tokens stay cached"),
    NamedVariant("Q-K=V@w8@s8", "sparse attention", "window and stride, Child et al. 2019"),
    NamedVariant("QKV@sima", "softmax-free attention", "Koohpayegani and Pirsiavash 2024"),
    NamedVariant("Q=K-V@sima", "this project"),
    NamedVariant("Q=K-V@soft", "softmax-free attention", "Lu et al. 2021"),
    NamedVariant("Q-K=V@soft", "this project", "a Gaussian kernel of a separate query and key"),
    NamedVariant("QKV@linear", "softmax-free attention", "Katharopoulos et al. 2020"),
    NamedVariant("Q-K=V@linear", "this project", "sharing does not shrink the state"),
    NamedVariant("Q=K=V@linear", "three projections", "appendix A.1: a state-space model"),
    NamedVariant("Q=K=V@linear@decay-fixed@undecayed-sum", "three projections", "appendix A.1"),
    NamedVariant("Q-K=V@linear-relu@decay-learned", "this project"),
    NamedVariant("QKV@linear-softmax", "this project", "features that sum to 1"),
    NamedVariant(
        "QKV@linear-identity@decay-fixed", "softmax-free attention", "as in RetNet, Sun et al. 2023"
    ),
)
