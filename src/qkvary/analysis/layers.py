"""The results of one layer, from its weights and its moments."""

from collections.abc import Iterator

import torch
from torch import Tensor

from qkvary.analysis import subspaces
from qkvary.analysis.attention_statistics import AttentionStatistics
from qkvary.analysis.cosines import read_cosines
from qkvary.analysis.moments import LayerMoments
from qkvary.analysis.observation import LayerReading
from qkvary.analysis.ranks import read_ranks
from qkvary.analysis.results import KeyValueReading, LayerAnalysis
from qkvary.analysis.subspaces import HeadMoments
from qkvary.analysis.tying import Tie, cross_forecast, forecast_tie
from qkvary.arch.labels import format_label
from qkvary.nn.attention import Attention
from qkvary.nn.role_maps import LinearMap, RoleMaps, make_role_maps


class LayerStatistics:
    """Accumulates the statistics of one layer, window by window."""

    def __init__(self, attention: Attention, number: int, seed: int) -> None:
        self.attention, self.number, self.seed = attention, number, seed
        self.moments = LayerMoments(attention.config, attention.o_proj.weight.device)
        self.statistics = AttentionStatistics(attention)
        self._keys = torch.Generator().manual_seed(seed + number)

    def add(self, reading: LayerReading) -> Tensor:
        """Add a window, and return the attention weights of the window, [heads, tokens, tokens]."""
        self.moments.add(reading, self._keys)
        return self.statistics.add(reading)

    def result(self) -> LayerAnalysis:
        """Return the results of the layer."""
        config = self.attention.config
        maps = _scaled_maps(self.attention)
        sharing = config.variant.sharing
        return LayerAnalysis(
            number=self.number,
            label=format_label(config.variant),
            is_shared=sharing.key == sharing.value,
            cosines=read_cosines(maps),
            ranks=read_ranks(maps, seed=self.seed),
            key_values=tuple(self._compare_heads(maps)),
            attention=self.statistics.result(),
        )

    def ties(self) -> tuple[Tie, ...]:
        """Return the best single tensor for key and value of each KV head."""
        if self.attention.key_norm is None:
            maps = make_role_maps(self.attention)
            joint = torch.cat((maps.key.weight, maps.value.weight), dim=1)
            moments = joint @ self.moments.covariance().cpu() @ joint.mT
        else:
            moments = self.moments.pair_covariance().cpu()
        return tuple(map(forecast_tie, moments, self.moments.curvature().cpu()))

    def _compare_heads(self, maps: RoleMaps) -> Iterator[KeyValueReading]:
        config, moments = self.attention.config, self.moments
        size, kv_heads = config.size_per_head, config.num_kv_heads
        # F is upper triangular, and F^T F is the covariance.
        factor = torch.linalg.cholesky(moments.covariance()).mT.cpu()
        generator = torch.Generator().manual_seed(self.seed + self.number)
        weights = subspaces.draw_weights(len(factor), size, generator)
        overlap, share = subspaces.sample_chance(*(factor @ weight for weight in weights))
        turned = [factor @ torch.linalg.qr(weight).Q for weight in weights]
        output = self.attention.o_proj.weight.detach().cpu().double().mT.unflatten(0, (-1, size))
        outputs = (output @ output.mT).unflatten(0, (kv_heads, -1)).sum(dim=1)
        queries = moments.query_moments().cpu().unflatten(0, (kv_heads, -1))
        grouped = queries.sum(dim=1)
        curvature = moments.curvature().cpu()
        first, second = (half.cpu() for half in moments.half_curvatures())
        if self.attention.key_norm is None:
            keys, values = ([factor @ one.mT for one in role.weight] for role in maps[1:])
        else:
            roots = [*map(subspaces.square_root, moments.pair_covariance().cpu())]
            keys, values = zip(*(root.split(size, dim=1) for root in roots), strict=True)
        for place in range(kv_heads):
            head = HeadMoments(keys[place], values[place], grouped[place], outputs[place])
            own = maps.key.weight[place].mT, maps.value.weight[place].mT
            ranks = [subspaces.orthonormal_basis(weight).shape[1] for weight in own]
            weight_cosines = subspaces.principal_cosines(*own)
            token_cosines = subspaces.principal_cosines(head.keys, head.values)
            readers = [subspaces.square_root(one) for one in (head.queries, head.outputs)]
            seen, read = head.keys @ readers[0], head.values @ readers[1]
            spectrum = subspaces.joint_spectrum(seen, read)
            scales = [torch.linalg.svdvals(one @ by) for one, by in zip(own, readers, strict=True)]
            similarity, lost = subspaces.sample_read_chance(
                turned[0], turned[1], (scales[0], scales[1])
            )
            joint = torch.cat((head.keys, head.values), dim=1)
            joint_moments = joint.mT @ joint
            tie = forecast_tie(joint_moments, curvature[place])
            changes = (queries[place] * tie.error[:size, :size]).sum(dim=(-2, -1))
            yield KeyValueReading(
                head=place + 1,
                weight_cosines=tuple(weight_cosines.tolist()),
                weight_overlap=subspaces.mean_square(weight_cosines),
                weight_chance=max(ranks) / len(factor),
                token_cosines=tuple(token_cosines.tolist()),
                token_overlap=subspaces.mean_square(token_cosines),
                token_chance=overlap,
                similarity=subspaces.kernel_alignment(seen, read),
                similarity_chance=similarity,
                plain_similarity=subspaces.kernel_alignment(head.keys, head.values),
                explained=subspaces.explained_share(head),
                explained_chance=share,
                spectrum=tuple(spectrum.tolist()),
                lost=subspaces.lost_share(spectrum, size),
                lost_chance=lost,
                forecast=cross_forecast(joint_moments, (first[place], second[place])),
                fitted_forecast=tie.forecast,
                score_change=float(changes.clamp(min=0).max().sqrt()),
            )


def _scaled_maps(attention: Attention) -> RoleMaps:
    """Return the maps of query, key and value, with the gains of the norms multiplied into them."""
    maps = make_role_maps(attention)
    scaled: list[LinearMap] = []
    for one, norm in ((maps.query, attention.query_norm), (maps.key, attention.key_norm)):
        if norm is None:
            return maps
        gain, heads = norm.gain.detach().cpu().double(), len(one.weight)
        gains = gain.view(heads, -1) if norm.is_wide else gain.expand(heads, -1)
        scaled.append(LinearMap(one.weight * gains[..., None], one.bias * gains))
    return RoleMaps(scaled[0], scaled[1], maps.value)
