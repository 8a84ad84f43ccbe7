// sections.hpp - how large one element of each section of a region is, in the order of enum
// Section. Writers and readers of regions go by this; later layouts may only let them grow.
#pragma once

#include "format/layout.hpp"

namespace fr {

inline constexpr u32 kRowBytes[kSections] = {1,
                                             sizeof(GroupRow),
                                             4,
                                             sizeof(LaneRow),
                                             sizeof(StringRow),
                                             1,
                                             sizeof(FrameRow),
                                             sizeof(StackRow),
                                             4,
                                             4,
                                             sizeof(Crumb),
                                             sizeof(Status),
                                             sizeof(Record),
                                             sizeof(Device),
                                             sizeof(CommRow),
                                             sizeof(DeviceOp),
                                             sizeof(Phase),
                                             sizeof(Cuda),
                                             sizeof(GroupText),
                                             sizeof(SiteRow)};

}  // namespace fr
