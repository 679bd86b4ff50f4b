"""What is told of a run: tables for the terminal."""

from sparse_bo.reports.tables import plan_table, recorded_summary, summary

__all__ = ["plan_table", "recorded_summary", "summary"]
