"""What a hook is, and the objects that it gets: context, outcome, timer, coordinator."""
