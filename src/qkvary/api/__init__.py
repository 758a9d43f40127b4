"""The functions behind the names of ``import qkvary as qk``."""
