"""What an Estimator is made of: its spec, its settings, its input, its promises."""
