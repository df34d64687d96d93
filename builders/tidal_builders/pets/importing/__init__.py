"""Makes tasks of what others have: folders of peft and AdapterHub, and fully fine-tuned checkpoints."""
