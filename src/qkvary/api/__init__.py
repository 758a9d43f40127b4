"""The verbs, one file each: functions of ``qk`` that are commands too."""
