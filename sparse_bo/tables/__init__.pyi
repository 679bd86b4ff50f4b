from .comparison import Contestant, comparison_table, plot_comparison, terminal_comparison
from .runs import audit_table, plan_table, recorded_summary, summary
from .terminal import braille_curves, plain

__all__ = [
    "Contestant",
    "audit_table",
    "braille_curves",
    "comparison_table",
    "plain",
    "plan_table",
    "plot_comparison",
    "recorded_summary",
    "summary",
    "terminal_comparison",
]
