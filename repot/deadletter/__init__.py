"""Dead letters on either broker: publish, list, replay and discard messages that failed permanently."""
