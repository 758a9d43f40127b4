"""What a person imports: the functions behind the names of ``import qkvary as qk``."""
