"""Native library in C++: linear layers, attention and whole passes on a CPU; imports nothing of Flover."""
