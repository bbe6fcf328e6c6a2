"""Which pieces of tables go to which devices: the plan side of `joint`."""
