"""The README says what the code says."""

from benchmarks.support.readme_tables import README, metrics_table, options_table, with_tables


def test_the_readme_s_tables_are_up_to_date() -> None:
    text = README.read_text()
    assert with_tables(text) == text, "run: python -m benchmarks.support.readme_tables"


def test_every_option_and_metric_has_a_row_with_a_meaning() -> None:
    for table in (options_table(), metrics_table()):
        assert all(cell.strip() for row in table.splitlines() for cell in row.strip("|").split(" | "))
    for name in ("max_staleness", "reward.timeout_s", "length_bias_window"):
        assert f"| `{name}` |" in options_table()
    assert "| `ledger/drawn` |" in metrics_table() and "`staleness/tokens/*`" in metrics_table()
