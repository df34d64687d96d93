"""Arlo's comparison: padding, dynamic shapes, bin packing, partitioned and polymorphic placement on equal arrivals."""
