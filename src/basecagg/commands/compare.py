"""`basecagg compare`: protocols and schedules side by side, from the checkout."""

from basecagg.commands.reproduce import from_checkout

command = from_checkout("compare_command")
