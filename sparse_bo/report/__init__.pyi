from .tables import plan_table, recorded_summary, summary
from .text import plain

__all__ = ["plain", "plan_table", "recorded_summary", "summary"]
