"""`python -m quantform`: the same as the command."""

from __future__ import annotations

from quantform_command import main

main()
