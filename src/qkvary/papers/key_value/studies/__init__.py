"""The experiments of paper 2, as in its text or its code; each study is named after its file."""
