"""Placements: bands, plans, the planners that make them and the code that checks them."""
