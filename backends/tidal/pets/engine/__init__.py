"""The PET inference engine on a CPU: one frozen encoder whose graph looks up every row's task (PetS §3, §4)."""
