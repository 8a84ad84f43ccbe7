function timelineSection() {}
