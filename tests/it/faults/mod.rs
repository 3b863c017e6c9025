//! One fault after the other on a real cluster of six nodes, under load: what the clients see.

mod primaries;
