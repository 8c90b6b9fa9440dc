"""What holds a kernel back: a class of bottleneck from its time, its roof and its compiled code, and what to try."""

from opforge.diagnose.bottleneck import Subject as Subject, diagnose as diagnose
