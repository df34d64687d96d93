"""The PET inference engine in torch: shared products over the whole batch, and the terms of many tasks at once."""
