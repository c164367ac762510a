"""Datatypes as the compiler sees them: described, registered, defined by a user, counted."""
