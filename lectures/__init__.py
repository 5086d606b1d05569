"""Teaching in front of a class: solved notebooks, and slides with live ranks. See `talk` and `show`."""
