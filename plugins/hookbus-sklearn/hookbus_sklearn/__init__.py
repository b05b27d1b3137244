"""Teaches hookbus the models of scikit-learn, xgboost and lightgbm."""
