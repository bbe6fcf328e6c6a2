"""Compiled loops over ids and rows: arrays and numbers in, arrays out."""
