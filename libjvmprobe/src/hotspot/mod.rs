//! HotSpot own layout.
