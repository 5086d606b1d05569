"""Grids of the four ranks: with one axis, with two, and with axes whose order or names an answer must not take for granted."""

DP = dict(dp=4)
TP = dict(tp=4)
DP_TP = dict(dp=2, tp=2)
TP_DP = dict(tp=2, dp=2)
CP_TP = dict(cp=2, tp=2)
DP_CP = dict(dp=2, cp=2)
EP_DP = dict(ep=2, dp=2)
WITH_ONE = dict(dp=2, pp=1, tp=2)
THREE = dict(dp=3)  # the fourth rank is on a grid of its own
