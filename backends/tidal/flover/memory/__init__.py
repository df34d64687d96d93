"""Where the keys and values of running generations lie: slots, and the tensors behind them."""
