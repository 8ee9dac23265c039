//! The reference engine: a sorted map in DRAM that does what the trait says and nothing else.
