"""How the shipped language models and their data are made."""
