"""Files that users name, and text that is printed: read with limits, written whole or not at
all."""
