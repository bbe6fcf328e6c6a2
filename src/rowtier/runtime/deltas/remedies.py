"""What to do about a delta that is not whole, as errors say it."""

AGAIN = "copy the folder from where it is whole, or export the tables"  # again
