//! Helpers for the tests: starting JVMs, reading their logs.
