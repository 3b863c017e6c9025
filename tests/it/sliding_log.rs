//! The sliding log against a list that forgets nothing, on every step of random histories, and what bounds it.
