"""The live panel: where the states of the ranks come from (`source`), in words (`status`), and on the screen (`panel`)."""
