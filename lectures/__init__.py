"""For who stands in front of a room: solved notebooks, and slides with live ranks. See `talk` and `show`."""
