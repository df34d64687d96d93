"""PetS: queries of many fine-tuned tasks, of different kinds of fine-tuning, share one pass of a frozen encoder."""
