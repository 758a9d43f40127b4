"""How a study is shown: one page, its tables and figures, and the table in the terminal."""
