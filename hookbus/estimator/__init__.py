"""The Estimator, and what its model_fn returns."""
