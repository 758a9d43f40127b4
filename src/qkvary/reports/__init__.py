"""Renders results for readers: pages, tables, charts and exports."""
