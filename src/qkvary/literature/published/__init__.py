"""The papers' figures as data, one JSON file per table; read through ``literature.figures``."""
