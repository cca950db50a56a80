"""Where messages go that failed for good, on either broker: written whole, listed, replayed, discarded."""
