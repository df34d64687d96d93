"""`tidal controller`: changes the allocation of partitioned models as their traffic changes (Arlo §3.3, §4)."""
