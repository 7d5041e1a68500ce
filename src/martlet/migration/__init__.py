"""Moving to Martlet from another broker's data folder."""
