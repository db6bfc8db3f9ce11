"""Serves forests of decision trees: of XGBoost, LightGBM, treelite and scikit-learn."""
