"""What a hook is, and all that one is handed: context, outcome, timer, coordinator."""
