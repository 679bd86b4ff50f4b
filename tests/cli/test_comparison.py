"""Comparisons as pictures in a terminal."""

import math
import re

from sparse_bo.cli.commands import Contestant, terminal_comparison

HEIGHT = 12


def test_a_curve_is_drawn_dot_by_dot():
    falling = Contestant("falling", [1.0] + [0.0] * 63, 0.1)  # 1/n per evaluation
    text = terminal_comparison([falling], width=60, dots=True, height=HEIGHT).plain.split("\n")
    assert text[0] == "regret per evaluation so far, logarithmic axes"
    assert len(text) == 1 + HEIGHT + 2
    assert all(len(line) <= 60 for line in text)
    marks = [(row, column, c) for row, line in enumerate(text[1 : HEIGHT + 1]) for column, c in enumerate(line)]
    cells = [(row, column, ord(c) - 0x2800) for row, column, c in marks if c > "\u2800"]
    # On logarithmic axes 1/n is a straight line from the upper left to the lower right corner.
    assert (cells[0][0], cells[0][1]) == (0, 10)
    assert cells[0][2] & 0x01
    assert (cells[-1][0], cells[-1][1]) == (HEIGHT - 1, 59)
    assert cells[-1][2] & 0x80
    share = [math.log(n) / math.log(64) for n in range(1, 65)]
    assert sum(bits.bit_count() for _, _, bits in cells) == len({(round(99 * s), round((4 * HEIGHT - 1) * s)) for s in share})
    assert "64 evaluations" in text[-2]
    assert "falling" in text[-1]


def test_what_cannot_be_drawn_is_left_out():
    assert terminal_comparison([Contestant("none", [0.0, -1.0], 0.1)], width=60, dots=True).plain == ""
    assert terminal_comparison([Contestant("a", [1.0, 2.0], 0.1)], width=20, dots=True).plain == ""
    text = terminal_comparison(
        [Contestant("a", [1.0, 0.0, 0.5], 0.1), Contestant("b", [2.0, 2.0], 0.1)], width=80, dots=False
    ).plain
    assert re.search(r"\*", text)
    assert text.isascii()
