"""Tables and state in files: saved under one plan, loaded under any other, exported."""
