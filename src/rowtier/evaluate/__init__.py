"""Answers about plans: what they load where, and how they compare."""
